"""Serves several replicas of a model behind one address."""
