-- An answer for deliveries that are still this consumer's: an entry that was claimed by somebody else, or by
-- ourselves once more, is another delivery, and this answer is not for it.
-- KEYS: stream, dead letters if any. ARGV: group, consumer, what, argument, "delete" or "", then id and
-- delivery count of each.
-- ack: done for good. bury REASON: the same, with a copy among the dead letters.
-- release: back at once and uncounted.
-- later MS: not to be claimed before its idle time, set to this, has reached the visibility.
-- extend MS: the same, and never sooner than now.
local stream, group, consumer, what = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local taken = 0
for i = 6, #ARGV, 2 do
  local id = ARGV[i]
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if pending and pending[2] == consumer and pending[4] == tonumber(ARGV[i + 1]) then
    taken = taken + 1
    if what == 'ack' or what == 'bury' then
      local entry = what == 'bury' and redis.call('XRANGE', stream, id, id)[1]
      if entry then
        local copy = {'XADD', KEYS[2], '*'}
        for _, part in ipairs(entry[2]) do copy[#copy + 1] = part end
        for _, part in ipairs({'header:oncebox-reason', ARGV[4], 'header:oncebox-origin', stream .. ':' .. id}) do
          copy[#copy + 1] = part
        end
        redis.call(unpack(copy))
      end
      redis.call('XACK', stream, group, id)
      if ARGV[5] == 'delete' then redis.call('XDEL', stream, id) end
    elseif what == 'release' then
      -- Idle for decades: whoever claims next gets it, whatever its visibility.
      redis.call('XCLAIM', stream, group, consumer, 0, id,
                 'IDLE', '1000000000000', 'RETRYCOUNT', pending[4] - 1, 'JUSTID')
    else
      local idle = tonumber(ARGV[4])
      if what == 'extend' then idle = math.min(idle, pending[3]) end
      redis.call('XCLAIM', stream, group, consumer, 0, id, 'IDLE', idle, 'JUSTID')
    end
  end
end
return taken
