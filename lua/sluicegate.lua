-- Decides checks and settles them: all charges of a check or none, each under every rule of its policy, in one atomic step.
-- README.md beside this file draws the stored value and explains the words.
--
-- KEYS[i]      the key of charge i; the charges of one check follow one another
-- ARGV[1]      '' for the server's clock, or the time in ms (tests)
-- ARGV[i + 1]  what to do with KEYS[i]:
--                I1 action: 0 begins a check, 1 belongs to the check before it, 2 adds and 3 takes units in a settlement
--                I7 units: the cost of the charge, or the difference of the settlement
--                I1 how many rules follow
--                I6 step, I6 hold, I7 limit of each; in a settlement, the end of the charged step instead of the limit
--                the label of the policy, as it stands in the value: I1 how many rules, then I6 step, I6 hold of each
-- Reply        one string: I6 the time; then for each key I1, 0 if its check is refused, and the head of each rule's section
--              as it is now. Under a rule that refuses, `first` is the time at which the cost fits.
--
-- Writes nothing when a check is refused or costs nothing. All numbers are whole, all times are in ms.

local pack, unpack, sub, call = struct.pack, struct.unpack, string.sub, redis.call

local NARROW, WIDE = 4294967296, 281474976710656 -- steps in queues are counted modulo one of these
local MOST = 9007199254740991 -- units: 2^53 - 1

local now, slack = ARGV[1], 0
if now == '' then
  local time = call('TIME')
  local ms = time[2] / 1000
  now = time[1] * 1000 + ms - ms % 1
else
  now, slack = tonumber(now), 86400000 -- a day: a clock that is set by hand must not meet real expiry
end

-- How many of the first entries are at least `age` steps older than `newest`, or hold a total below `sum`; the total of the
-- last of them; and the step of the one that follows (nil behind the end). Gallops, as the answer is mostly small.
local function leading(value, at, count, width, newest, age, sum)
  local entry, size, wrap = '<I4I4', 8, 4294967296
  if width > 1 then entry, size, wrap = '<I6I7', 13, 281474976710656 end
  local low, high, stride, last, following = 0, count - count % 1 + 1, 1, nil, nil
  while high - low > 1 do
    local probe = low + stride
    if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
    local step, total = unpack(entry, value, at + (probe - 1) * size)
    local leads
    if age then leads = (newest - step) % wrap >= age else leads = total < sum end
    if leads then
      low, last, stride = probe, total, stride * 2
    else
      high, following, stride = probe, step, high
    end
  end
  return low, last, following
end

-- What is seldom needed is made when it is needed: a closure costs as much as a look at the value.
local function seldom(now, leading)
  local pack, unpack, sub, byte = struct.pack, struct.unpack, string.sub, string.byte
  local seldom = {}
  local HEAD, HEAD_SIZE, SPAN_SIZE = '<I1I6I6I7I7I4', 31, 12 -- width, newest, first, total, base, length of the queue
  local ENTRY, ENTRY_SIZE, WRAP = { '<I4I4', '<I6I7' }, { 8, 13 }, { 4294967296, 281474976710656 }
  local MOST = 9007199254740991 -- units: 2^53 - 1
  local EMPTY = string.rep('\0', HEAD_SIZE)

  -- The end of the last step that is believed: one further ahead was charged while the clock was wrong.
  function seldom.believed(step, hold)
    return now + step + step + math.max(step, hold)
  end

  -- The value with the caller's sections in front and in its order, empty where they are new, then those of others that
  -- still count; how many these are all together, and when the last of the others is released. Drops the caller's steps
  -- that are not believed.
  function seldom.conform(value, label)
    local sections, found = {}, {}
    local count = value and byte(value) or 0
    local at = 2 + count * (SPAN_SIZE + HEAD_SIZE)
    for i = 1, count do
      local from = 2 + count * SPAN_SIZE + (i - 1) * HEAD_SIZE
      local _, newest, _, _, _, length = unpack(HEAD, value, from)
      local section = { span = sub(value, 2 + (i - 1) * SPAN_SIZE, 1 + i * SPAN_SIZE) }
      section.head, section.queue = sub(value, from, from + HEAD_SIZE - 1), sub(value, at, at + length - 1)
      local _, hold = unpack('<I6I6', section.span)
      section.release = newest + hold
      sections[i], found[section.span] = section, section
      at = at + length
    end
    local spans, heads, queues, carried = { '' }, {}, {}, 0
    local function keep(span, head, queue)
      spans[#spans + 1], heads[#heads + 1], queues[#queues + 1] = span, head, queue
    end
    for i = 1, byte(label) do
      local span = sub(label, 2 + (i - 1) * SPAN_SIZE, 1 + i * SPAN_SIZE)
      local own = found[span]
      found[span] = nil
      if own then keep(span, seldom.trim(span, own.head, own.queue)) else keep(span, EMPTY, '') end
    end
    for _, other in ipairs(sections) do
      if found[other.span] and other.release > now and #heads < 255 then
        keep(other.span, other.head, other.queue)
        carried = math.max(carried, other.release)
      end
    end
    spans[1] = string.char(#heads)
    return table.concat(spans) .. table.concat(heads) .. table.concat(queues), #heads, carried
  end

  -- A section without the steps that are not believed.
  function seldom.trim(span, head, queue)
    local step, hold = unpack('<I6I6', span)
    local width, newest, first, total, base, length = unpack(HEAD, head)
    if newest <= seldom.believed(step, hold) then return head, queue end
    local size, number, age = ENTRY_SIZE[width], newest / step, (newest - seldom.believed(step, hold)) / step
    local left, sum = leading(queue, 1, length / size, width, number, age)
    if left == 0 then return EMPTY, '' end
    local last = unpack(ENTRY[width], queue, (left - 1) * size + 1)
    newest = newest - (number - last) % WRAP[width] * step
    length = (left - 1) * size
    return pack(HEAD, width, newest, first, sum, base, length), sub(queue, 1, length)
  end

  -- A queue written anew, with totals that start from 0.
  function seldom.rewrite(queue, width, to, newest, base)
    local entries = {}
    for at = 1, #queue, ENTRY_SIZE[width] do
      local step, total = unpack(ENTRY[width], queue, at)
      step = newest - (newest - step) % WRAP[width]
      entries[#entries + 1] = pack(ENTRY[to], step % WRAP[to], total - base)
    end
    return table.concat(entries)
  end

  -- A section after `units` were added to the step that ends at `stop`, or taken from it: its queue, what is in its head,
  -- and whether anything changed.
  function seldom.settle(queue, width, step, newest, total, base, stop, units)
    local ends, counts, before = {}, {}, base
    for at = 1, #queue, ENTRY_SIZE[width] do
      local number, sum = unpack(ENTRY[width], queue, at)
      ends[#ends + 1] = newest - (newest / step - number) % WRAP[width] * step
      counts[#counts + 1] = sum - before
      before = sum
    end
    if total > before then ends[#ends + 1], counts[#counts + 1] = newest, total - before end
    local place = #ends + 1
    while place > 1 and ends[place - 1] >= stop do place = place - 1 end
    if ends[place] ~= stop then
      table.insert(ends, place, stop)
      table.insert(counts, place, 0)
    end
    units = math.max(math.min(units, MOST - (total - base)), -counts[place])
    counts[place] = counts[place] + units
    if counts[place] == 0 then
      table.remove(ends, place)
      table.remove(counts, place)
    end
    if total - base + units >= WRAP[1] then width = 2 end
    local entries, sum = {}, 0
    for entry = 1, #ends - 1 do
      sum = sum + counts[entry]
      entries[entry] = pack(ENTRY[width], ends[entry] / step % WRAP[width], sum)
    end
    return table.concat(entries), width, ends[#ends] or newest, ends[1] or newest, total - base + units, units ~= 0
  end

  return seldom
end

-- Charge by charge. A check is tried as if it fitted: what it would write is put aside until its last charge has passed.
-- If one does not, the check is looked at again from its first charge, and the heads say when the cost fits.
local KEYS, ARGV = KEYS, ARGV
local reply, writes, looks, i, begin = pack('<I6', now), nil, false, 1, 1
local before = reply -- what is replied to the checks before this one
local known -- the values of a check with several charges, for when it is looked at again
local args, action, units, rules, label -- what to do with KEYS[i]
local value, sections, carried -- of KEYS[i], how many sections it has, and until when those of others count
while KEYS[i] do
  if ARGV[i + 1] ~= args then -- concurrent requests mostly ask the same of different keys
    args = ARGV[i + 1]
    action, units, rules = unpack('<I1I7I1', args)
    label = sub(args, 10 + rules * 19)
  end
  if value == nil and looks and known and known[i] then
    value, sections, carried = known[i], string.byte(known[i]), 0
  end
  if value == nil then
    value, sections, carried = call('GET', KEYS[i]), rules, 0
    if not value then
      value = label .. string.rep('\0', rules * 31)
    elseif sub(value, 1, #label) ~= label then
      value, sections, carried = seldom(now, leading).conform(value, label)
    end
  end

  local till, was, changes, fits, conforms = carried, carried, units > 0 and action < 2 and not looks, true, true
  local heads, queues, from, pos = '', '', 2 + sections * 12, 10
  local at = from + sections * 31
  local kept = at -- the queues before this byte have been copied
  for _ = 1, rules do
    local step, hold, limit, width, newest, first, total, base, length
    step, hold, limit, pos = unpack('<I6I6I7', args, pos)
    width, newest, first, total, base, length, from = unpack('<I1I6I6I7I7I4', value, from)
    local time = now
    if newest - step > now and total > base then -- the clock stepped back: time stands still until it has caught up
      time = newest - step
      conforms = newest <= seldom(now, leading).believed(step, hold)
      if not conforms then break end
    elseif width == 0 then
      width = hold / step < 4294967290 and 1 or 2
    end

    -- Release: of the queue, the entries from `live` on still count; `added` will follow them.
    local behind, release = at + length, newest + hold
    local live, added = at, ''
    if release > was then was = release end
    if release <= time or total == base then
      newest = now - now % step + step
      first, total, base, live = newest, 0, 0, behind
    elseif first + hold <= time then
      local number, size, gone, following = newest / step, width == 1 and 8 or 13, nil, nil
      gone, base, following = leading(value, at, length / size, width, number, (release - time) / step)
      first = following and newest - (number - following) % (width == 1 and NARROW or WIDE) * step or newest
      live = at + gone * size
    end

    if action > 1 then
      -- `limit` is the end of the step that was charged.
      if limit + hold > time and limit <= seldom(now, leading).believed(step, hold) then
        local difference, differs = action == 2 and units or -units, nil
        added, width, newest, first, total, differs =
          seldom(now, leading).settle(sub(value, live, behind - 1), width, step, newest, total, base, limit, difference)
        base, live, changes = 0, behind, changes or differs
      end
    elseif total - base + units > limit then
      fits = false
      if not looks then break end
      first = 0
      if units <= limit then
        local number, count = newest / step, (behind - live) / (width == 1 and 8 or 13)
        local _, _, following = leading(value, live, count, width, number, nil, total - limit + units)
        first = newest + hold - (following and (number - following) % (width == 1 and NARROW or WIDE) * step or 0)
      end
    elseif units > 0 and not looks then
      if total + units >= NARROW and (width == 1 or total + units > MOST) then
        local to = (total - base + units >= 2147483648 or hold / step >= 4294967290) and 2 or 1
        added = seldom(now, leading).rewrite(sub(value, live, behind - 1), width, to, newest / step, base)
        width, total, base, live = to, total - base, 0, behind
      end
      if now >= newest then
        if width == 1 then
          added = added .. pack('<I4I4', newest / step % NARROW, total)
        else
          added = added .. pack('<I6I7', newest / step % WIDE, total)
        end
        newest = now - now % step + step
      end
      total = total + units
    end

    if live > at then
      if kept < at then queues = queues .. sub(value, kept, at - 1) end
      kept = live
    end
    if added ~= '' then
      queues = queues .. sub(value, kept, behind - 1) .. added
      kept = behind
    end
    heads = heads .. pack('<I1I6I6I7I7I4', width, newest, first, total, base, behind - live + #added)
    if total > base and newest + hold > till then till = newest + hold end
    at = behind
  end


  if not conforms then
    value, sections, carried = seldom(now, leading).conform(value, label)
  elseif not fits and not looks then
    if i > begin then known[i], value = value, nil end
    reply, writes, looks, i = before, nil, true, begin
  else
    local last, written = not KEYS[i + 1] or string.byte(ARGV[i + 2]) ~= 1, nil
    if changes then
      if sections == rules then
        written = label .. heads .. queues .. sub(value, kept)
      else
        local labels, others = sub(value, 1, 1 + sections * 12), sub(value, from, 1 + sections * 43)
        written = labels .. heads .. others .. queues .. sub(value, kept)
      end
    end
    if not last then
      if written then writes = { KEYS[i], written, till, was, writes } end
      if not looks then
        known = known or {}
        known[i] = value
      end
    end
    reply, value, i = reply .. (looks and '\0' or '\1') .. heads, nil, i + 1
    if last then
      local key = KEYS[i - 1]
      while key do
        if not written then
          -- a charge of no units
        elseif till == 0 then
          call('DEL', key)
        elseif till > was then
          call('SET', key, written, 'PX', till - now + slack)
        else
          call('SET', key, written, 'KEEPTTL')
        end
        key = nil
        if writes then key, written, till, was, writes = writes[1], writes[2], writes[3], writes[4], writes[5] end
      end
      before, known, looks, begin = reply, nil, false, i
    end
  end
end
return reply
