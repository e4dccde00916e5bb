"""Where does it go? Many servers behind one handler: their names, their lists, their lives."""
