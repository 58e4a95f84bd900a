"""Attention of rows one by one, as in decoding: each row's keys are split over several programs."""
