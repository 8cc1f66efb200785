-- Slots of concurrency rules, for the fast path and the plain script. KEYS[i] is a sorted set of ids, and the score of
-- an id is when it expires. A slot is *held* while that lies in (now, now + window]. A part ends with its ids.
--
-- These functions leave what a check writes to `write.lua`. A renewal and a return have one key, and write themselves.

local KEYS, ARGV, pack, sub, format = KEYS, ARGV, struct.pack, string.sub, string.format -- globals, so dearer
local SHADOWS, RENEW = 1, 7 -- actions
local ID_SIZE = 16
local MOST_IDS = 2000 -- so many ids Lua surely passes on, each with its score
local FEW = 128 -- so many ids a server keeps in one list, in which it searches
local USAGE = '<I7I6I6'
local after = format('(%.0f', now)

-- Calls a command about KEYS[i]. An error of the server ends the operation.
local function ask(command, i, ...)
  local reply = try(command, KEYS[i], ...)
  if type(reply) == 'table' and reply.err then error({ problem = reply.err }) end -- a server makes text of `err`
  return reply
end

-- The first `count` of the `sent` ids of a part.
local function ids_of(arg, sent, count)
  local ids, at = {}, #arg - sent * ID_SIZE + 1
  for k = 1, count do ids[k], at = sub(arg, at, at + ID_SIZE - 1), at + ID_SIZE end
  return ids
end

-- Which of these ids are held, of `used` that are.
local function held_of(i, ids, used, last)
  local held, latest = {}, tonumber(last)
  if used > 0 and used <= FEW then
    for _, id in ipairs(ask('ZRANGEBYSCORE', i, after, last)) do held[id] = true end
  elseif used > 0 then
    for from = 1, #ids, MOST_IDS do
      local to = math.min(from + MOST_IDS - 1, #ids)
      local scores = ask('ZMSCORE', i, spread(ids, from, to))
      for k = from, to do
        local score = tonumber(scores[k - from + 1] or 0)
        held[ids[k]] = score > now and score <= latest
      end
    end
  end
  return held
end

-- When the slot in this place expires, of those that are held: the first is in place 0.
local function expiry(command, i, from, to, place)
  return tonumber(ask(command, i, from, to, 'WITHSCORES', 'LIMIT', place, 1)[2] or 0)
end

-- Reads KEYS[i] for `asked` checks: how many of them fit (`times`), the ids that these take, and how many of the ids
-- the first k checks take (`ends[k]`).
local function read(i, limit, window, asked)
  if stored[i] then return stored[i] end -- by the fast path
  local arg, last = ARGV[i], format('%.0f', now + window)
  local used, units, count = ask('ZCOUNT', i, after, last), tasks[arg].units, tasks[arg].count
  local sent = units > 0 and math.min(count, (limit - limit % units) / units) or 0 -- so many checks have ids
  local all, ids, ends, times = ids_of(arg, sent * units, math.min(sent, asked) * units), {}, { [0] = 0 }, 0
  local held = held_of(i, all, all[1] and used or 0, last)
  while times < asked do
    local need = units
    if times < sent then
      for k = times * units + 1, times * units + units do
        if not held[all[k]] then ids[#ids + 1] = all[k] end
      end
      need = #ids - ends[times]
    end
    if need > limit - used - ends[times] and (need > 0 or units == 0) then break end
    times = times + 1
    ends[times] = #ids
  end
  stored[i] = {
    limit = limit, window = window, last = last, units = units, used = used, times = times, ids = ids, ends = ends,
  }
  return stored[i]
end

-- Leaves the ids of the first `times` checks to be written, which fit. Returns the usage after these, and when another
-- check fits if `is_denied`.
local function take(i, view, times, is_denied)
  local last, taken, latest, fits_at = view.last, view.ends[times], 0, 0
  local over = view.used + taken - view.limit + view.units
  if is_denied and over > 0 then
    fits_at = over > view.used and tonumber(last) or expiry('ZRANGEBYSCORE', i, after, last, over - 1)
  end
  if taken > 0 then
    latest, values[i], expiries[i] = tonumber(last), {}, view.window
  elseif view.used > 0 then
    latest = expiry('ZREVRANGEBYSCORE', i, last, after, 0)
  end
  for k = 1, taken do
    if k % MOST_IDS == 1 then values[i][#values[i] + 1] = {} end
    local chunk = values[i][#values[i]]
    chunk[#chunk + 1], chunk[#chunk + 2] = last, view.ids[k]
  end
  return pack(USAGE, view.used + taken, latest, fits_at)
end

-- Renews the slots of a part, or returns them. Returns the usage, and a bit for each id: whether it was held.
local function renew_or_return(i, window, is_renewal)
  local arg, last = ARGV[i], format('%.0f', now + window)
  local count, used = tasks[arg].count, ask('ZCOUNT', i, after, last)
  local ids, found, pairs, bits, latest = ids_of(arg, count, count), {}, {}, {}, 0
  local held = held_of(i, ids, used, last)
  for k, id in ipairs(ids) do
    local place = (k - 1) % 8
    local byte = (k - 1 - place) / 8 + 1
    bits[byte] = bits[byte] or 0
    if held[id] then bits[byte], found[#found + 1] = bits[byte] + 2 ^ place, id end
  end
  if found[1] and is_renewal then
    for k = #found, 1, -1 do pairs[#pairs + 1], pairs[#pairs + 2] = last, found[k] end
    -- A server searches a short list from its front. There it finds ids in their order, and there it puts them
    -- backwards. The first stays: a cluster that moves the slot of a key takes no write to a key that has gone.
    if #found > 1 and used <= FEW then ask('ZREM', i, spread(found, 2)) end
    ask('ZADD', i, spread(pairs))
    ask(expire, i, slack > 0 and window + slack or last)
    latest = tonumber(last)
  else
    if found[1] then ask('ZREM', i, spread(ids)) end
    used = used - #found
    latest = used > 0 and expiry('ZREVRANGEBYSCORE', i, last, after, 0) or 0
  end
  return pack(USAGE, used, latest, 0) .. string.char(spread(bits))
end

-- Decides for the fast path. Returns whether the slots fit, and the reply about the key.
local function decide(i, policy, action, count, is_denied)
  if action >= RENEW then return true, renew_or_return(i, policy.window, action == RENEW) end
  local view = read(i, policy.limit, policy.window, count)
  if action > SHADOWS then return true, take(i, view, 0, false) end -- a settlement leaves slots alone
  local fits = view.times == count
  return fits, take(i, view, fits and not is_denied and count or 0, is_denied or not fits)
end

return decide, read, take, renew_or_return
