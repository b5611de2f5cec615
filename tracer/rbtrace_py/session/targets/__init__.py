"""The processes that a session looks at: children, agents that come later, consent."""
