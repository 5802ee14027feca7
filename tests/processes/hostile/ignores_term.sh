# leader and child ignore every signal that can be ignored
trap '' TERM HUP INT QUIT USR1 USR2
bash -c 'while :; do sleep 0.2; done' &
echo ready > ready
while :; do sleep 0.2; done
