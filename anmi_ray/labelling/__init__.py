"""People in the loop: which pairs they are asked about, the page that asks, and how judges agree with them."""
