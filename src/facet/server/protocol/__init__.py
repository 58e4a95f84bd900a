"""Wire types: what clients send and what they are sent, field by field. They know no engine."""
