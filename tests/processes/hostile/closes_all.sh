# a daemon that closes all its descriptors, so that no pipe tells of its life
bash -c 'exec 0<&- 1>&- 2>&-; for fd in /proc/self/fd/*; do n=${fd##*/}; eval "exec $n>&-"; done; trap "" HUP; sleep 1000 & sleep 1000' &
sleep 0.1
echo ready > ready
sleep 1000
