-- What nobody has answered in time becomes ours, together with how often it was delivered.
-- XAUTOCLAIM counts the delivery, and forgets entries that were trimmed from the stream: those are reported.
-- With deliveries_max, an entry that came once too often moves to the dead letters, in this same step.
-- KEYS: stream, dead letters or "". ARGV: group, consumer, visibility ms, cursor, count, deliveries_max or 0,
-- "delete" or "".
local stream, group = KEYS[1], ARGV[1]
local claimed = redis.call('XAUTOCLAIM', stream, group, ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local most = tonumber(ARGV[6])
local found, buried = {}, {}
for _, entry in ipairs(claimed[2]) do
  local id, fields = entry[1], entry[2]
  local count = redis.call('XPENDING', stream, group, id, id, 1)[1][4]
  if most > 0 and count > most then
    local copy = {'XADD', KEYS[2], '*'}
    for _, part in ipairs(fields) do copy[#copy + 1] = part end
    local origin = {'header:oncebox-dead-stream', stream, 'header:oncebox-dead-id', id,
                    'header:oncebox-dead-deliveries', count - 1}
    for _, part in ipairs(origin) do copy[#copy + 1] = part end
    redis.call(unpack(copy))
    redis.call('XACK', stream, group, id)
    if ARGV[7] == 'delete' then redis.call('XDEL', stream, id) end
    buried[#buried + 1] = id
  else
    found[#found + 1] = {id, fields, count}
  end
end
return {claimed[1], found, claimed[3] or {}, buried}
