"""Model cards, which describe models, and the cards of the published models."""
