"""Coordinates of cloud providers' regions, as the providers name the place; 0.1 degrees.

Two lines may share a place. Regions that are not here (also `GLOBAL`, and announcements without a
region) are left to country data.
"""

from __future__ import annotations

# fmt: off
_SITES: tuple[tuple[str, float, float, str], ...] = (  # country, latitude, longitude, regions
    ("AE", 25.2, 55.3, "aws/me-central-1 azure/uaenorth oracle/me-dubai-1"),
    ("AE", 24.5, 54.4, "azure/uaecentral oracle/me-abudhabi-1"),
    ("AT", 48.2, 16.4, "azure/austriaeast"),
    ("AU", -33.9, 151.2, "aws/ap-southeast-2 gcp/australia-southeast1 azure/australiaeast "
                         "oracle/ap-sydney-1 digitalocean/AU-NSW"),
    ("AU", -37.8, 145.0, "aws/ap-southeast-4 gcp/australia-southeast2 azure/australiasoutheast "
                         "oracle/ap-melbourne-1"),
    ("AU", -35.3, 149.1, "azure/australiacentral azure/australiacentral2"),
    ("BE", 50.4, 3.9, "gcp/europe-west1 azure/belgiumcentral"),
    ("BR", -23.5, -46.6, "aws/sa-east-1 gcp/southamerica-east1 azure/brazilsouth "
                         "oracle/sa-saopaulo-1 oracle/sa-vinhedo-1"),
    ("BR", -22.9, -43.2, "azure/brazilse oracle/sa-riodejaneiro-2"),
    ("CA", 45.5, -73.6, "aws/ca-central-1 gcp/northamerica-northeast1 oracle/ca-montreal-1"),
    ("CA", 43.7, -79.4, "gcp/northamerica-northeast2 azure/canadacentral oracle/ca-toronto-1 "
                        "digitalocean/CA-ON"),
    ("CA", 46.8, -71.2, "azure/canadaeast"),
    ("CA", 51.0, -114.1, "aws/ca-west-1"),
    ("CH", 47.4, 8.5, "aws/eu-central-2 gcp/europe-west6 azure/switzerlandn oracle/eu-zurich-1"),
    ("CH", 46.2, 6.1, "azure/switzerlandw"),
    ("CL", -33.4, -70.7, "aws/sa-west-1 gcp/southamerica-west1 azure/chilec oracle/sa-santiago-1 "
                         "oracle/sa-valparaiso-1"),
    ("CN", 39.9, 116.4, "aws/cn-north-1"),
    ("CN", 37.5, 105.2, "aws/cn-northwest-1"),
    ("CO", 4.7, -74.1, "oracle/sa-bogota-1"),
    ("DE", 50.1, 8.7, "aws/eu-central-1 gcp/europe-west3 azure/germanywc oracle/eu-frankfurt-1 "
                      "digitalocean/DE-HE"),
    ("DE", 52.5, 13.4, "aws/eusc-de-east-1 gcp/europe-west10 azure/germanyn"),
    ("DK", 55.7, 12.6, "azure/denmarkeast"),
    ("ES", 40.4, -3.7, "gcp/europe-southwest1 azure/spaincentral oracle/eu-madrid-1 "
                       "oracle/eu-madrid-3"),
    ("ES", 41.6, -0.9, "aws/eu-south-2"),
    ("FI", 60.6, 27.1, "gcp/europe-north1"),
    ("FR", 48.9, 2.4, "aws/eu-west-3 gcp/europe-west9 azure/centralfrance oracle/eu-paris-1"),
    ("FR", 43.3, 5.4, "azure/southfrance oracle/eu-marseille-1"),
    ("GB", 51.5, -0.1, "aws/eu-west-2 gcp/europe-west2 azure/uksouth oracle/uk-london-1 "
                       "digitalocean/GB-SLG"),
    ("GB", 51.5, -3.2, "azure/ukwest oracle/uk-cardiff-1"),
    ("HK", 22.3, 114.2, "aws/ap-east-1 gcp/asia-east2 azure/eastasia"),
    ("ID", -6.2, 106.8, "aws/ap-southeast-3 gcp/asia-southeast2 azure/indonesiacentral"),
    ("ID", 1.1, 104.0, "oracle/ap-batam-1"),
    ("IE", 53.3, -6.3, "aws/eu-west-1 azure/northeurope azure/northeurope2 oracle/eu-dublin-3"),
    ("IL", 32.1, 34.8, "aws/il-central-1 gcp/me-west1 azure/israelcentral"),
    ("IL", 31.8, 35.2, "azure/israelnorthwest oracle/il-jerusalem-1"),
    ("IN", 19.1, 72.9, "aws/ap-south-1 gcp/asia-south1 azure/westindia oracle/ap-mumbai-1"),
    ("IN", 17.4, 78.5, "aws/ap-south-2 azure/indiasouthcentral oracle/ap-hyderabad-1"),
    ("IN", 28.6, 77.2, "gcp/asia-south2 oracle/ap-delhi-1"),
    ("IN", 18.5, 73.9, "azure/centralindia"),
    ("IN", 13.1, 80.3, "azure/southindia"),
    ("IN", 13.0, 77.6, "digitalocean/IN-KA"),
    ("IN", 22.5, 70.1, "azure/jioindiawest"),
    ("IN", 21.1, 79.1, "azure/jioindiacentral"),
    ("IT", 45.5, 9.2, "aws/eu-south-1 gcp/europe-west8 azure/italynorth oracle/eu-milan-1"),
    ("IT", 45.1, 7.7, "gcp/europe-west12"),
    ("JP", 35.7, 139.7, "aws/ap-northeast-1 gcp/asia-northeast1 azure/japaneast oracle/ap-tokyo-1"),
    ("JP", 34.7, 135.5, "aws/ap-northeast-3 gcp/asia-northeast2 azure/japanwest oracle/ap-osaka-1"),
    ("KR", 37.6, 127.0, "aws/ap-northeast-2 gcp/asia-northeast3 azure/koreacentral "
                        "oracle/ap-seoul-1 oracle/ap-chuncheon-1"),
    ("KR", 35.2, 129.1, "azure/koreasouth"),
    ("MA", 33.6, -7.6, "oracle/af-casablanca-1"),
    ("MX", 20.6, -100.4, "aws/mx-central-1 gcp/northamerica-south1 azure/mexicocentral "
                         "oracle/mx-queretaro-1"),
    ("MX", 25.7, -100.3, "oracle/mx-monterrey-1"),
    ("MY", 3.1, 101.7, "aws/ap-southeast-5 azure/malaysiawest"),
    ("MY", 1.5, 103.7, "azure/malaysiasouth oracle/ap-kulai-1"),
    ("NL", 52.4, 4.9, "azure/westeurope oracle/eu-amsterdam-1 digitalocean/NL-NH"),
    ("NL", 53.4, 6.8, "gcp/europe-west4"),
    ("NO", 59.9, 10.8, "azure/norwaye"),
    ("NO", 59.0, 5.7, "azure/norwayw"),
    ("NZ", -36.8, 174.8, "aws/ap-southeast-6 azure/newzealandnorth"),
    ("PL", 52.2, 21.0, "gcp/europe-central2 azure/polandcentral"),
    ("QA", 25.3, 51.5, "gcp/me-central1 azure/qatarcentral"),
    ("RS", 43.9, 20.9, "oracle/eu-jovanovac-1"),
    ("SA", 26.4, 50.1, "gcp/me-central2"),
    ("SA", 24.7, 46.7, "oracle/me-riyadh-1"),
    ("SA", 21.5, 39.2, "oracle/me-jeddah-1"),
    ("SE", 59.3, 18.1, "aws/eu-north-1 gcp/europe-north2 oracle/eu-stockholm-1"),
    ("SE", 60.7, 17.1, "azure/swedencentral"),
    ("SE", 55.6, 13.0, "azure/swedensouth"),
    ("SG", 1.3, 103.8, "aws/ap-southeast-1 gcp/asia-southeast1 azure/southeastasia "
                       "oracle/ap-singapore-1 oracle/ap-singapore-2 digitalocean/SG-05"),
    ("BH", 26.1, 50.6, "aws/me-south-1"),
    ("TH", 13.8, 100.5, "aws/ap-southeast-7 gcp/asia-southeast3"),
    ("TW", 25.0, 121.5, "aws/ap-east-2 azure/taiwannorth azure/taiwannorthwest"),
    ("TW", 24.1, 120.5, "gcp/asia-east1"),
    ("US", 39.0, -77.5, "aws/us-east-1 gcp/us-east4 azure/eastus oracle/us-ashburn-1 "
                        "digitalocean/US-VA"),
    ("US", 36.7, -78.4, "azure/eastus2 azure/eastus2euap"),
    ("US", 33.7, -84.4, "azure/eastus3 digitalocean/US-GA"),
    ("US", 40.0, -83.0, "aws/us-east-2 aws/us-gov-east-1 gcp/us-east5"),
    ("US", 40.8, -74.1, "digitalocean/US-NJ"),
    ("US", 33.2, -80.0, "gcp/us-east1"),
    ("US", 41.3, -95.9, "gcp/us-central1"),
    ("US", 36.2, -95.3, "gcp/us-central2"),
    ("US", 41.6, -93.6, "azure/centralus azure/centraluseuap oracle/us-desmoines-1"),
    ("US", 41.9, -87.6, "azure/northcentralus oracle/us-chicago-1"),
    ("US", 29.4, -98.5, "azure/southcentralus oracle/us-sanantonio-1"),
    ("US", 32.8, -96.8, "gcp/us-south1 oracle/us-dallas-1"),
    ("US", 32.4, -99.7, "oracle/us-abilene-1"),
    ("US", 38.9, -94.7, "oracle/us-lenexa-1 oracle/us-shawnee-1"),
    ("US", 38.6, -90.2, "digitalocean/US-MO"),
    ("US", 35.1, -90.0, "digitalocean/US-MEM"),
    ("US", 41.1, -104.8, "azure/westcentralus"),
    ("US", 40.8, -111.9, "gcp/us-west3 oracle/us-saltlake-2"),
    ("US", 33.4, -112.1, "azure/westus3 oracle/us-phoenix-1"),
    ("US", 36.2, -115.1, "gcp/us-west4"),
    ("US", 34.1, -118.2, "gcp/us-west2"),
    ("US", 37.5, -122.0, "aws/us-west-1 azure/westus oracle/us-sanjose-1 digitalocean/US-CA"),
    ("US", 45.6, -121.2, "aws/us-west-2 aws/us-gov-west-1 gcp/us-west1 oracle/us-boardman-1"),
    ("US", 47.2, -119.9, "azure/westus2 oracle/us-quincy-1"),
    ("ZA", -33.9, 18.4, "aws/af-south-1 azure/southafricawest"),
    ("ZA", -26.2, 28.0, "gcp/africa-south1 azure/southafricanorth oracle/af-johannesburg-1"),
)
# fmt: on

CLOUD_REGIONS: dict[str, tuple[str, tuple[float, float]]] = {
    region: (country, (latitude, longitude))
    for country, latitude, longitude, regions in _SITES
    for region in regions.split()
}
"""Country (ISO 3166-1 alpha-2) and coordinates, by `provider/region`."""
