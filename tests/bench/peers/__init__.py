"""What logitd is compared with, written for the bench after each engine's way of doing it."""
