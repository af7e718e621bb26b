-- What nobody has answered in time becomes ours, together with how often it was delivered.
-- XAUTOCLAIM counts the delivery, and forgets entries that were trimmed from the stream: those are reported.
-- KEYS: stream. ARGV: group, consumer, visibility ms, cursor, count.
local stream, group = KEYS[1], ARGV[1]
local claimed = redis.call('XAUTOCLAIM', stream, group, ARGV[2], ARGV[3], ARGV[4], 'COUNT', ARGV[5])
local found = {}
for _, entry in ipairs(claimed[2]) do
  local pending = redis.call('XPENDING', stream, group, entry[1], entry[1], 1)[1]
  found[#found + 1] = {entry[1], entry[2], pending[4]}
end
return {claimed[1], found, claimed[3]}
