# a child in a session of its own, and the leader waits
setsid sleep 1000 &
echo ready > ready
sleep 1000
