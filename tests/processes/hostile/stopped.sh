# a child that is stopped and cannot act on a signal by itself
sleep 1000 &
kill -STOP $!
echo ready > ready
sleep 1000
