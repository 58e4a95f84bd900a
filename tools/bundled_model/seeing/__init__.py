"""Made-up pictures and questions about them, from which the bundled model can learn to see a little."""
