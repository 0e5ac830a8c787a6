"""Real servers for tests and campaigns, each of its own and gone afterwards."""
