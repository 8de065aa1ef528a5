"""Reduce Snakemake's graph of rules to the most important rules, for docs/rulegraph.svg.

`make diagrams` runs this script. It reads a graph in dot format from the standard input and prints a smaller one.
"""

import re
import sys

# Rule -> text of its box. All other rules are left out.
BOXES = {
    "write_prompts": "prompts",
    "train_tokenizer": "image tokenizer",
    "train_target": "target model",
    "train_drafter": "draft model",
    "build_nearest_codes": "nearest codes",
    "generate_images": "images of every method",
    "score_images": "scores of images",
    "measure_quality": "quality",
    "measure_latency": "latency",
    "measure_total_variation": "total variation",
    "summarise": "tables and claims",
}


def followers(rule: str, edges: dict[str, set[str]]) -> set[str]:
    """Return the next important rules (keys of BOXES) after a rule, also if rules without a box are between them."""
    found = set()
    for after in edges.get(rule, ()):
        found |= {after} if after in BOXES else followers(after, edges)
    return found


def descendants(rule: str, edges: dict[str, set[str]]) -> set[str]:
    """Return all rules that depend on a rule's output, directly or through other rules."""
    return {later for after in edges.get(rule, ()) for later in {after} | descendants(after, edges)}


def main() -> None:
    """Read Snakemake's graph from the standard input, and print the smaller one."""
    text = sys.stdin.read()
    names = dict(re.findall(r'^\s*(\d+)\[label = "([a-z_]+)', text, re.M))
    edges: dict[str, set[str]] = {}
    for before, after in re.findall(r"^\s*(\d+) -> (\d+)", text, re.M):
        edges.setdefault(names[before], set()).add(names[after])
    short = {rule: followers(rule, edges) for rule in BOXES}
    print('digraph rules {\n  rankdir=LR; node [shape=box, style=rounded, fontname="sans", fontsize=11];')
    for rule, label in BOXES.items():
        print(f'  {rule} [label="{label}\\n{rule}"];')
        implied = {later for after in short[rule] for later in descendants(after, short)}
        for after in sorted(short[rule] - implied):
            print(f"  {rule} -> {after};")
    print("}")


if __name__ == "__main__":
    main()
