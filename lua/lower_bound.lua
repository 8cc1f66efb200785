-- Finds a place in a queue by bisection: the numbers of steps, and the totals, grow from entry to entry.
-- source        the string that the entries stand in
-- live, behind  where the first of them begins, and the byte after the last
-- width         of the entries
-- of_totals     whether totals are compared, else numbers of steps
-- origin        what they are counted from, in units or steps
-- bound         in units or steps above the origin
-- Returns how many entries come before the first that is at least `bound`.
local source, live, behind, width, of_totals, origin, bound = ...
local unpack, entry, size, wrap = struct.unpack, seldom('entry_format', width)
local count = (behind - live) / size
count = count - count % 1 -- whole, even if the length is not
local low, high, probe = 0, count + 1, count -- the last first, as a silence releases all
while high - low > 1 do
  if probe >= high then probe = (low + high - (low + high) % 2) / 2 end
  local number, total = unpack(entry, source, live + (probe - 1) * size)
  if of_totals then number = total end
  if (number - origin) % wrap < bound then
    low, probe = probe, probe * 2
  else
    high, probe = probe, probe == count and 1 or high -- then 1, 2, 4, … from the first, as the answer is mostly small
  end
end
return low
