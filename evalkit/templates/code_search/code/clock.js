'use strict'

// Minutes since midnight as HH:MM; what lies behind midnight counts from zero again.
function clock (minutes) {
  const day = Math.round(minutes) % 1440
  const part = n => String(n).padStart(2, '0')
  return `${part(Math.floor(day / 60))}:${part(day % 60)}`
}

module.exports = { clock }
