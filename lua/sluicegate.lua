-- Decides checks and settles them: all charges of a check or none, each under every rule of its policy, in one atomic step.
-- README.md beside this file draws the stored value and explains the words.
--
-- KEYS[i]      the key of charge i; the charges of one check follow one another
-- ARGV[1]      '' for the server's clock, or the time in ms (tests)
-- ARGV[i + 1]  what to do with KEYS[i]: three whole numbers, then three for each rule of the policy
--                I1 action: 0 begins a check, 1 belongs to the check before it, 2 adds and 3 takes units in a settlement
--                I7 units: the cost of the charge, or the difference of the settlement
--                I1 how many rules follow
--                  I6 step, I6 hold, I7 limit; in a settlement, the end of the charged step instead of the limit
-- Reply        one string: I6 the time; then for each key I1, 0 if its check is refused, and the head of each rule's section
--              as it is now. Under a rule that refuses, `first` is the time at which the cost fits.
--
-- Writes nothing when a check is refused or costs nothing. All numbers are whole, all times are in ms.

local pack, unpack, sub, byte, call = struct.pack, struct.unpack, string.sub, string.byte, redis.call

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
  local low, high, stride, last, following = 0, count + 1, 1, nil, nil
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

-- What is seldom needed is made when it is needed: a closure costs as much as a read.
local function seldom()
  local seldom = {}
  local HEAD, HEAD_SIZE = '<I1I6I6I6I6I7I7I4', 43 -- width, step, hold, newest, first, total, base, length of the queue
  local ENTRY, ENTRY_SIZE, WRAP = { '<I4I4', '<I6I7' }, { 8, 13 }, { 4294967296, 281474976710656 }
  local MOST = 9007199254740991 -- units: 2^53 - 1

  -- The end of the last step that is believed: one further ahead was charged while the clock was wrong.
  function seldom.believed(step, hold)
    return now + step + step + math.max(step, hold)
  end

  -- The value with the caller's sections in front and in its order, empty where they are new, then those of others that
  -- still count; and when the last of those is released. Drops the caller's steps that are not believed.
  function seldom.conform(value, args, rules)
    local heads, queues, others, found, carried = {}, {}, {}, {}, 0
    local count = value and byte(value) or 0
    local at = 2 + count * HEAD_SIZE
    for section = 1, count do
      local from = 2 + (section - 1) * HEAD_SIZE
      local _, _, hold, newest, _, _, _, length = unpack(HEAD, value, from)
      local other = { head = sub(value, from, from + HEAD_SIZE - 1), queue = sub(value, at, at + length - 1) }
      other.span, other.release = sub(other.head, 2, 13), newest + hold
      others[section], found[other.span] = other, other
      at = at + length
    end
    local pos = 10
    for rule = 1, rules do
      local span = sub(args, pos, pos + 11)
      pos = pos + 19
      local own = found[span]
      if own then
        heads[rule], queues[rule] = seldom.trim(own.head, own.queue)
        found[span] = nil
      else
        heads[rule], queues[rule] = string.rep('\0', HEAD_SIZE), ''
      end
    end
    for _, other in ipairs(others) do
      if found[other.span] and other.release > now and #heads < 255 then
        heads[#heads + 1], queues[#queues + 1] = other.head, other.queue
        carried = math.max(carried, other.release)
      end
    end
    return string.char(#heads) .. table.concat(heads) .. table.concat(queues), carried
  end

  -- A section without the steps that are not believed.
  function seldom.trim(head, queue)
    local width, step, hold, newest, first, total, base, length = unpack(HEAD, head)
    local believed, size, number = seldom.believed(step, hold), ENTRY_SIZE[width], newest / step
    if newest <= believed then return head, queue end
    local left, sum = leading(queue, 1, length / size, width, number, (newest - believed) / step)
    if left == 0 then return string.rep('\0', HEAD_SIZE), '' end
    local last = unpack(ENTRY[width], queue, (left - 1) * size + 1)
    newest = newest - (number - last) % WRAP[width] * step
    length = (left - 1) * size
    return pack(HEAD, width, step, hold, newest, first, sum, base, length), sub(queue, 1, length)
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

local count = #KEYS

-- Decides charge `i` and those of its check that follow, and writes them if all fit: answers the heads of their sections,
-- and where the next check begins. Nothing for a check that does not fit, unless the caller `looks`: then nothing is
-- charged, and the heads say when the cost fits. `value` and `carried` are known when the value has been made to conform.
local function decide(i, looks, value, carried)
  local now, args = now, ARGV[i + 1]
  local action, units, rules, pos = unpack('<I1I7I1', args)
  if not carried then
    value, carried = call('GET', KEYS[i]), 0
    if not value then
      value = string.char(rules) .. string.rep('\0', rules * 43)
    elseif byte(value) ~= rules then
      value, carried = seldom().conform(value, args, rules)
    end
  end
  local sections, till, was, writes = byte(value), carried, carried, units > 0 and action < 2 and not looks
  local heads, queues, from, at = looks and '\0' or sub(value, 1, 1), '', 2, 2 + sections * 43
  local kept = at -- the queues before this byte have been copied
  for _ = 1, rules do
    local step, hold, limit, width, step_, hold_, newest, first, total, base, length
    step, hold, limit, pos = unpack('<I6I6I7', args, pos)
    width, step_, hold_, newest, first, total, base, length, from = unpack('<I1I6I6I6I6I7I7I4', value, from)
    local time = now
    if newest - step > now then time = newest - step end -- the clock stepped back: time stands still until it caught up
    if step_ == 0 then
      width = hold / step < 4294967290 and 1 or 2
    elseif step_ ~= step or hold_ ~= hold or time > now and newest > seldom().believed(step, hold) then
      return decide(i, looks, seldom().conform(value, args, rules))
    end

    -- Release: of the queue, the entries from `live` on still count; `added` will follow them.
    local behind, release, size, wrap = at + length, newest + hold, 8, 4294967296
    if width ~= 1 then size, wrap = 13, 281474976710656 end
    local live, added = at, ''
    if release > was then was = release end
    if release <= time or total == base then
      newest = now - now % step + step
      first, total, base, live = newest, 0, 0, behind
    elseif first + hold <= time then
      local number, gone, following = newest / step, nil, nil
      gone, base, following = leading(value, at, length / size, width, number, (release - time) / step)
      first = following and newest - (number - following) % wrap * step or newest
      live = at + gone * size
    end

    if action > 1 then
      -- `limit` is the end of the step that was charged.
      if limit + hold > time and limit <= seldom().believed(step, hold) then
        local difference, differs = action == 2 and units or -units, nil
        added, width, newest, first, total, differs =
          seldom().settle(sub(value, live, behind - 1), width, step, newest, total, base, limit, difference)
        base, live, writes = 0, behind, writes or differs
      end
    elseif total - base + units > limit then
      if not looks then return nil, value, carried end
      first = 0
      if units <= limit then
        local number = newest / step
        local _, _, following = leading(value, live, (behind - live) / size, width, number, nil, total + units - limit)
        first = newest + hold - (following and (number - following) % wrap * step or 0)
      end
    elseif units > 0 and not looks then
      if total + units >= 4294967296 and (width == 1 or total + units > 9007199254740991) then
        local to = (total - base + units >= 2147483648 or hold / step >= 4294967290) and 2 or 1
        added = seldom().rewrite(sub(value, live, behind - 1), width, to, newest / step, base)
        width, total, base, live = to, total - base, 0, behind
        wrap = to == 1 and 4294967296 or 281474976710656
      end
      if now >= newest then
        added = added .. pack(width == 1 and '<I4I4' or '<I6I7', newest / step % wrap, total)
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
    heads = heads .. pack('<I1I6I6I6I6I7I7I4', width, step, hold, newest, first, total, base, behind - live + #added)
    if total > base and newest + hold > till then till = newest + hold end
    at = behind
  end

  local others, behind = '', i + 1
  if behind <= count and byte(ARGV[behind + 1]) == 1 then
    others, behind = decide(behind, looks)
    if not others then return nil, value, carried end
  end
  if writes then
    if till == 0 then
      call('DEL', KEYS[i])
    else
      local carry = sections > rules and sub(value, from, 1 + sections * 43) or ''
      value = heads .. carry .. queues .. sub(value, kept)
      if till > was then
        call('SET', KEYS[i], value, 'PX', till - now + slack)
      else
        call('SET', KEYS[i], value, 'KEEPTTL')
      end
    end
  end
  return heads .. others, behind
end

local reply, i = pack('<I6', now), 1
while i <= count do
  local heads, behind, carried = decide(i, false)
  if not heads then heads, behind = decide(i, true, behind, carried) end
  reply, i = reply .. heads, behind
end
return reply
