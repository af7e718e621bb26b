-- Forget consumers that have nothing in hand: this one, and those of processes that died long ago.
-- A consumer with pending entries stays, or its entries would be gone with it.
-- KEYS: stream. ARGV: group, consumer or "", prefix of our names, milliseconds after which one is gone.
local gone = 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #info, 2 do consumer[info[i]] = info[i + 1] end
  local old = string.sub(consumer.name, 1, #ARGV[3]) == ARGV[3] and consumer.idle > tonumber(ARGV[4])
  if consumer.pending == 0 and (consumer.name == ARGV[2] or old) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
    gone = gone + 1
  end
end
return gone
