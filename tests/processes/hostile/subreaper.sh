# see subreaper.py
python3 "$(dirname "$0")/subreaper.py"
