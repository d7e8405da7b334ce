"""Mutants that compute the same function: entry -> mutant -> why nothing can notice it."""

EXPLAINED: dict[str, dict[str, str]] = {
    "forgetting": {
        "line 5: backend == 'eager' -> backend != 'eager'": "chooses the precision of sums of float64 gates",
    },
}
