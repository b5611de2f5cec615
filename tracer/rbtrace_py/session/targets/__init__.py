"""The processes of a session: selection, children, and confirmation of risks."""
