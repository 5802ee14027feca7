# a tmux server, which leaves its session and reparents itself
tmux -S "$HOME/tmux.sock" -f /dev/null new-session -d 'sleep 1000'
echo ready > ready
sleep 1000
