"""Every interleaving: workers' flows driven step by step, in every order or in seeded random ones."""
