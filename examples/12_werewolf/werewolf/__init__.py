"""Werewolf for twelve seats, in Chinese: the game, its players and a referee of its logs."""
