#!/bin/bash
# An agent folder as AutoRL-Bench's README teaches it, kept to show that such folders run unchanged.
echo "task=$TASK model=$BASE_MODEL key=${OPENAI_API_KEY:+set}"

SCRIPT_DIR="$(cd "$(dirname "$0")" && pwd)"
python "$(dirname "$0")/train.py" --model $MODEL_PATH --data $DATA_PATH --output $OUTPUT_DIR/v1
ls "$SCRIPT_DIR" > "$WORKSPACE/code/agent_files.txt"

curl -s -X POST "$GRADING_SERVER_URL/submit" \
    -H "Content-Type: application/json" \
    -d '{"model_path": "'$OUTPUT_DIR'/v1"}' | tee "$WORKSPACE/code/answer.json"
