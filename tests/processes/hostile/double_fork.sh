# a classic daemon: forked twice, own session, no terminal, its parent gone
( setsid bash -c 'sleep 1000 & disown' </dev/null >/dev/null 2>&1 & )
sleep 0.1
echo ready > ready
sleep 1000
