python code/train.py --model $MODEL_PATH --max-steps 120
