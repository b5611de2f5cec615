puts "ready"
nil while true
