"""Small, complete programs; the pages of the documentation refer to them."""
