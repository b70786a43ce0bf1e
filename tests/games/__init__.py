"""Games against an adversary: each is played with our defence, which must hold, and with the
defence taken away, where the adversary must win; a game that nobody can win tests nothing."""
