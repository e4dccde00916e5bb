"""Where clients come in: our server side. Shells that move bytes and run tasks; what a message means is protocol/'s."""
