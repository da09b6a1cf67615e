
resource "skerry_region" "fra" {
  name = "fra"
  iata = "FRA"
}
resource "skerry_pool" "p" {
  name     = "p"
  region   = skerry_region.fra.name
  role     = "hybrid"
  replicas = 0
}
resource "skerry_api_token" "admin" {
  name   = "ci"
  scopes = ["admin", "read"]
}
resource "skerry_api_token" "app" {
  name = "app"
}
resource "skerry_api_token" "other" {
  name       = "tenant"
  scopes     = ["run", "read", "admin"]
  account_id = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
}
