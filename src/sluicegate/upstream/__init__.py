"""What answers, elsewhere: our client side. Thin shells that move bytes; what a message means is protocol/'s."""
