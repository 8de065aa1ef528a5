"""Acceptances, which compute relaxed probabilities of drafts, and verifiers, which accept or reject drafts."""
