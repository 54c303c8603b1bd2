'use strict'

const { clock } = require('./clock')

const LUNAR_DAY = 24 * 60 + 50 // minutes

// The next high waters after one that is known.
function highWaters (first, count) {
  if (count > 8) throw new RangeError('no more than eight tides ahead')
  const times = []
  for (let n = 1; n <= count; n++) times.push(clock(first + n * LUNAR_DAY / 2))
  return times
}

// Rule of twelfths: how far the water has come after each hour.
const TWELFTHS = [1, 3, 6, 9, 11, 12]

function depth (low, range, hour) {
  return low + range * (hour < 1 ? 0 : TWELFTHS[Math.min(hour, 6) - 1]) / 12
}

module.exports = { highWaters, depth }
