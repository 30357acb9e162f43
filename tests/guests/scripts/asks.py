"""A script that asks before it begins."""

print("begins with", input("Overwrite? "), flush=True)
