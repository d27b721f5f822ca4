// What `page_audit.contrast_problems` runs in a page: the number of texts that are visible, and those
// whose contrast is below WCAG's AA. Text of HTML is painted in `color`, text of SVG in `fill`, on
// the backgrounds of the elements around it.
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true})
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1)
    canvas.fillStyle = colour
    canvas.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
    return [r, g, b, a / 255]
  }
  const over = (top, under, alpha) =>
    top.slice(0, 3).map((x, i) => x * alpha + under[i] * (1 - alpha))
  const light = ([r, g, b]) => {
    const linear = x => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
  }
  const behind = element => {
    const layers = []
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at)
      if (style.backgroundImage !== 'none') return null
      const colour = rgba(style.backgroundColor)
      layers.push(colour)
      if (colour[3] === 1) break
    }
    return layers.reverse().reduce((under, top) => over(top, under, top[3]), [255, 255, 255])
  }
  const opacity = element => {
    let all = 1
    for (let at = element; at; at = at.parentElement) all *= getComputedStyle(at).opacity
    return all
  }
  const shown = (element, range) => {
    if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) return false
    if (element.closest(':disabled, [aria-disabled=true]')) return false
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at)
      const unseen = style.clipPath !== 'none' || style.clip !== 'auto' // for screen readers only
      if (unseen) return false
    }
    const box = range.getBoundingClientRect()
    return box.width > 0 && box.height > 0
  }
  const problems = new Set()
  const check = (element, style, words, of) => {
    const inSvg = element instanceof SVGElement
    const colour = rgba(inSvg ? style.fill : style.color)
    const under = behind(element)
    if (under === null) return problems.add(`contrast cannot be told on an image: ${words}`)
    const alpha = colour[3] * opacity(element) * (inSvg ? style.fillOpacity : 1)
    const [a, b] = [light(over(colour, under, alpha)), light(under)]
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
    const size = parseFloat(style.fontSize)
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700)
    if (ratio < (large ? 3 : 4.5))
      problems.add(`contrast ${ratio.toFixed(2)} of ${of}: ${words}`)
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  let seen = 0
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement
    const words = node.data.trim().slice(0, 40)
    if (!words || element.closest('script, style, template, title, desc')) continue
    const range = document.createRange()
    range.selectNodeContents(node)
    if (!shown(element, range)) continue
    seen += 1
    check(element, getComputedStyle(element), words, element.tagName.toLowerCase())
  }
  for (const field of document.querySelectorAll('[placeholder]'))
    check(field, getComputedStyle(field, '::placeholder'), field.placeholder, 'a placeholder')
  return [seen, [...problems]]
}
