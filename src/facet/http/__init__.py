"""Reads HTTP responses and event streams, for all who ask servers; and what they are given to find one."""
