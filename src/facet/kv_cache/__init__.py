"""Where keys and values live: bookkeeping of blocks on the host. Knows pages, tokens and steps; no tensor."""
