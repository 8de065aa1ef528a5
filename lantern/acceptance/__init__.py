"""Acceptances and verifiers: which drafts a method accepts."""
