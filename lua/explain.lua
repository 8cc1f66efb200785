-- Pass 2: what is to be replied of one key: for each rule what is used, the end of the newest step, and when the units
-- fit; of a bucket what is missing, in units * ms, and the time.
-- now    in ms
-- task   what is asked
-- state  of the key
-- units  that ought to fit; 0 if only what counts is asked for
-- count  how many checks were admitted, if nothing else is replied of the call: then the reply is whole
local now, task, state, units, count = ...
local value, sections = state[1], state[4]
local labels, rules = task[2], task[6]
local pack, unpack = struct.pack, struct.unpack
if not value then
  return (count and pack('<I6I1I4', now, 1, count) or '') .. '\1' .. string.rep('\0', rules * 19)
end
local reply, at = nil, 14 + sections * 14
for k = 1, rules do
  local limit, used, due, newest, fits_at = task[k + 6], state[k + 4], state[sections + k + 4], nil, 0
  if due <= now or used - limit + units > 0 then -- added in this order, so that nothing exceeds 2^53
    local first, base, width, live, behind, step, hold, _
    used, newest, first, base, width, live, behind, _, step, hold = read_section(now, value, at, labels, k, used, due)
    local excess = used - limit + units -- what has to be released
    if excess <= 0 or units > limit or step > 140737488355328 then
      fits_at = 0
    elseif excess == 1 then
      fits_at = first + hold
    else
      local entry, size, wrap = seldom('entry_format', width)
      local last = live + seldom('lower_bound', value, live, behind, width, true, base, excess) * size
      local after = last < behind and (newest / step - unpack(entry, value, last)) % wrap * step or 0
      fits_at = newest - after + hold
    end
  else
    newest = unpack('<I6', value, at)
    if newest == 0 then newest = due end -- a bucket in which time stands still
  end
  if k > 1 then
    reply = reply .. pack('<I7I6I6', used, newest, fits_at)
  elseif count then -- at once, since each string that is made is dear
    reply = pack('<I6I1I4I1I7I6I6', now, 1, count, 1, used, newest, fits_at)
  else
    reply = pack('<I1I7I6I6', 1, used, newest, fits_at)
  end
  if k < rules then at = at + 28 + unpack('<I4', value, at + 23) end
end
return reply
