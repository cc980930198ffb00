"""Small programs that run as they are; the README explains them."""
