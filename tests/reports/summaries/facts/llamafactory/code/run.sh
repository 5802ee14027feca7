llamafactory-cli train code/train.yaml
