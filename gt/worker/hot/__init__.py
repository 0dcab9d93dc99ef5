"""What a worker does with pieces of a program that come again and again."""
