#!/usr/bin/env bash
# Runs the tests of models of transformers with the lowest and the newest version that pyproject.toml allows. A warning
# that something will be removed is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

range=$(sed -n 's/^ *"transformers\(>=.*,<.*\)",$/\1/p' pyproject.toml)
lowest=${range%%,*}
python=${PYTHON:-.venv/bin/python}
for wanted in "==${lowest#>=}" "$range"; do
	folder=$(mktemp -d)
	"$python" -m pip install --quiet --no-deps --target "$folder" "transformers$wanted"
	(cd "$folder" && echo transformers-*.dist-info)
	PYTHONPATH="$folder${PYTHONPATH:+:$PYTHONPATH}" "$python" -m pytest -q -m "not slow" \
		-W error::FutureWarning -W error::DeprecationWarning \
		tests/core/test_from_transformers.py tests/core/test_custom_generate.py tests/core/test_source_pictures.py \
		tests/core/text_encoders/test_token_prompts.py \
		"tests/core/auditing/test_audit.py::test_assisted_generation_of_transformers_shows_no_difference"
	rm -r "$folder"
done
