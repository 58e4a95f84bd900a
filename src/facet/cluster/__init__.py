"""Serves replicas of a model on a Ray cluster. Ray Serve runs them; requests and answers do not pass through it."""
