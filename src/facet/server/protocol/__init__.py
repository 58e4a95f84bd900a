"""Wire types: what clients send and receive, field by field. They know no engine."""
