"""The arrays that entries consist of: their layout, the memory they lie in, and the samples gathered from them."""
